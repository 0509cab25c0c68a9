"""Worker profiles: load them by name, file or text; model them from public numbers; measure them on a live
worker.
"""

from heddle_planner.profiles.loading import ProfileError, load_profile, packaged_names

__all__ = ["ProfileError", "load_profile", "packaged_names"]
