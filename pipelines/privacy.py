"""Nothing about a user's work is told to a hub, and a hub is asked for nothing that a request does not name."""

import os


def keep_to_ourselves(names_hub: bool) -> None:
    """No telemetry, and no word with a hub unless the request names one; what a user has set stays.

    The hub's client reads this once, when it is imported, so it is said before anything heavy is loaded.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if not names_hub:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
