"""What the performance claims rest on: one script per question, and `report`, which runs them all.

`README.md` beside this file has the method and the results.
"""
