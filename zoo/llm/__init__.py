"""The language-model experiment: does a model refine an initial guess (Fig. 6)?"""
