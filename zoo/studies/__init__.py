"""The paper, the atlas, the headlines, and known values of baselines."""
