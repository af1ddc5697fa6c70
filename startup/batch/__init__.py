"""One child of a fleet as a task of Google Cloud Batch. Standard library only, for Python 3.8 and later."""
