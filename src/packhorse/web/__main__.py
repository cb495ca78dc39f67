"""``python -m packhorse.web``: serve the API and the pages, with settings from where settings always come from."""

from packhorse import log
from packhorse.host import hide_settings
from packhorse.settings import load
from packhorse.web.app import serve

if __name__ == "__main__":
    loaded = load()
    settings = loaded.settings
    log.write(settings.log_format, settings.log_level)
    hide_settings(loaded.borrowed)
    serve(settings)
