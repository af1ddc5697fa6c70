from tests.support.bucket_fixtures import bucket, missing_bucket, storage_url  # noqa: F401
