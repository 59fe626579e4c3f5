"""Objects of S3 whose bucket has kept their versions.

In a bucket that keeps no versions any more, moto takes all of an object's versions away with the first that is deleted,
and fails at a delete marker among them.
"""
from moto.s3.models import FakeDeleteMarker


def install():
    """Patch moto."""
    FakeDeleteMarker.dispose = lambda self, garbage=False: None  # it holds no file, unlike a version
