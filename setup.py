"""Adds the trained checkpoints to wheels, as the folder zoo/shipped."""

import pathlib
import shutil

import setuptools
from setuptools.command.build_py import build_py


class BuildWithCheckpoints(build_py):
  """Copies the modules, and each checkpoint that has a card."""

  def run(self) -> None:
    super().run()
    if not self.editable_mode:  # an editable install finds them in the repository
      for card in pathlib.Path('checkpoints').glob('*/card.json'):
        target = pathlib.Path(self.build_lib, 'zoo', 'shipped', card.parent.name)
        shutil.copytree(card.parent, target, dirs_exist_ok=True)


setuptools.setup(cmdclass={'build_py': BuildWithCheckpoints})
