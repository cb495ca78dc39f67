"""Several speakers, one audio file: speech synthesis as a packhorse app."""

from packhorse_speech.app import app, dialogue

__all__ = ["app", "dialogue"]
