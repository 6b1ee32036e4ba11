"""Code location "citation": loads its data and answers the gRPC health service.

It stands where a Dagster code location stands: the same port, the same health
check, the same life cycle.
"""

import argparse
import json
import os
import pathlib
import signal
import sys
from concurrent import futures

import duckdb
import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

DATA = pathlib.Path(__file__).parent / "data" / "citations.csv"


def log(message, **fields):
    print(json.dumps({"msg": message, **fields}), file=sys.stderr)


def most_cited():
    """Gives the most cited work and how often it is cited."""
    return duckdb.execute(
        "SELECT cited, count(*) AS n FROM read_csv(?) GROUP BY cited ORDER BY n DESC, cited LIMIT 1",
        [str(DATA)],
    ).fetchone()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default=os.environ.get("GRPC_ADDRESS", "0.0.0.0:4266"))
    args = parser.parse_args()

    log("starting", revision=os.environ.get("REVISION", "unknown"), duckdb=duckdb.__version__)

    service = health.HealthServicer()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    health_pb2_grpc.add_HealthServicer_to_server(service, server)
    server.add_insecure_port(args.address)
    server.start()
    service.set("", health_pb2.HealthCheckResponse.NOT_SERVING)

    work, count = most_cited()
    log("data loaded", most_cited=work, count=count)
    for name in ("", "DagsterApi"):
        service.set(name, health_pb2.HealthCheckResponse.SERVING)
    log("serving", address=args.address)

    def stop(signum, _frame):
        log("stopping", signal=signal.Signals(signum).name)
        service.enter_graceful_shutdown()
        server.stop(grace=5)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
