"""Theory that no run, probe or claim of the paper needs: other labels, large dimension.

`import zoo` leaves it out: `from zoo.theory.research import asymptotic, labels`.
"""
