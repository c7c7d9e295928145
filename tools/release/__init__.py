"""Locks, version, wheel, sdist and software bill of materials of a release (docs/releases.md)."""
