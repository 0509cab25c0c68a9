"""`python -m heddle_cli`: the command of this very interpreter, whatever PATH holds."""

from heddle_cli.main import run

run()
