"""The errors a user can act on: one line each, never a traceback."""

from __future__ import annotations


class StagecutError(Exception):
    """Base of every error that Stagecut raises on purpose."""


class InputError(StagecutError):
    """Something given by the user is wrong: a file, an option, or a contradiction of two.

    The message is one line that names the file or option, the field, the id and the remedy.
    """


class InfeasibleError(StagecutError):
    """No plan can exist; the message says which device, colour or number of bytes is at fault."""


class VerificationError(StagecutError):
    """A plan breaks a rule of its problem, or claims an objective that it does not have."""
