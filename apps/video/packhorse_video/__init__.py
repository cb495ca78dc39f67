"""Video analysis as a packhorse app."""

from packhorse_video.app import analyse, app

__all__ = ["analyse", "app"]
