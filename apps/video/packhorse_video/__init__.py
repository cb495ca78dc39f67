"""What is to be seen and heard in a video, as a packhorse app."""

from packhorse_video.app import analyse, app

__all__ = ["analyse", "app"]
