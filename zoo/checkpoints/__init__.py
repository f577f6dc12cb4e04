"""Checkpoints: models in folders, written by Orbax and covered by checksums."""

from zoo.checkpoints.saved_models import SavedModel as SavedModel
from zoo.checkpoints.saved_models import load as load
from zoo.checkpoints.saving import save as save
