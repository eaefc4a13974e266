"""Programs that nobody wrote, for :mod:`tests.support.generator`: drawn, built, run, printed.

`description` says what a program is; `strategies` draws one; `model` and `loop` build and run it,
out of `children`, `messages` and `operations`; `shrinking` makes one smaller; `text` prints it.
"""
