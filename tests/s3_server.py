"""An S3-compatible server (moto) of this process, which tests and benchmarks of remote stores start."""

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from unittest import mock

NEEDED = "moto.server", "boto3", "s3fs"
INSTALL = "needs an S3-compatible server: pip install -c constraints.txt 'moto[s3]' flask flask-cors s3fs"
"""Why a test is skipped. The extra `test` has all of it."""
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "very-secret-key",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """The URL of an empty bucket; this process and those that it starts find the server in their environment."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import boto3
        from moto.server import ThreadedMotoServer

        # Without a level, each request is a line on standard error.
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        try:
            host, port = server.get_host_and_port()
            with mock.patch.dict(os.environ, {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}):
                boto3.client("s3").create_bucket(Bucket="bucket")
                yield "s3://bucket"
        finally:
            server.stop()
