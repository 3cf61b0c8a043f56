"""The result page: a self-contained HTML file and a picture made from what train and evaluate wrote."""
