from tests.support.bucket_fixtures import bucket, storage_url  # noqa: F401
