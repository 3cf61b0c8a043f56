"""Scores of captions and groundings as plain functions of text and numbers, and the advantages made from them."""
