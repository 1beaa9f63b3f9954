"""`fedspam predict`: predict new rows with a trained model.

Predict the rows of a table with the model of a run: CSV in, CSV out. The columns are those of the training
data; the label is not needed, others are copied. Text, missing values and scales are treated as in
training, and what differs from it is reported. The training data is not needed.

examples:
  fedspam predict runs/first new.csv > predictions.csv
  fedspam predict runs/first new.csv --probabilities --out predictions.csv
  fedspam predict runs/first new.parquet --out predictions.csv
  fedspam predict runs/own new.csv --model my_model.py:loss      (a loss of your own, with its predict)
"""

import argparse

from fedspam.app.commands._arguments import file_path


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", type=file_path, metavar="RUN", help="the run folder, or its model.safetensors")
    command.add_argument(
        "rows", type=file_path, metavar="ROWS", help="the new rows: .csv, .parquet, .arrow; .npz if trained on arrays"
    )
    command.add_argument("--out", type=file_path, metavar="FILE", help="the predictions as CSV (the terminal)")
    command.add_argument("--probabilities", action="store_true", help="also write the probability of each class")
    command.add_argument("--model", metavar="FILE:LOSS", help="the file of your own loss; its `predict` is run")
    command.add_argument("--delimiter", metavar="C", help="between two cells of the new rows (found in the header)")


def run(options: argparse.Namespace) -> int:
    from fedspam.app.predict import show

    return show(options)
