from tests.unit.contract.conftest import bucket, missing_bucket, storage_url  # noqa: F401
