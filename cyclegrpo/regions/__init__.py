"""Regions: how a part of an image is spelled, parsed back, measured and compared. Pure numpy: no torch, no files.

`geometry` states the conventions for boxes and masks, `tokens` and `boxes` parse model output, `overlap` compares
regions, and `spaces` ties these together with the prompts of each region space.
"""
