"""The result page: a self-contained HTML file made from what train and evaluate wrote."""
