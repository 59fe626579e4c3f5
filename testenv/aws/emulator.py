#!/usr/bin/env python3
"""AWS on loopback for tests: the moto server, with what it lacks of the services' behaviour.

Prints its address on the first line and serves until its standard input ends. Beside the services it answers

    POST /emulator/refuse?action=StartInstances&code=RequestLimitExceeded&times=2
    POST /emulator/capacity?machines=none|some|late&zone=ZONE&words=WORDS
    POST /emulator/advance?seconds=180
    GET /emulator/credentials?instance=ID or ?function=NAME
    GET /emulator/grants

The first refuses the next calls of an action with an error as the service words it; the second takes away, or gives back,
the machines that EC2 and Auto Scaling could launch or start, in all zones or one, or lets EC2 notice only after it has
accepted a start; words are those of a failed launch. The third lets virtual time pass. The fourth tells the credentials of the role that a machine or a
function has, with which calls are held against the role's policies (permissions.py); the last, which statements have allowed
a call that no other one would have.

usage: emulator.py [--settle SECONDS [--virtual]] [--serverless HOST:PORT]
"""
import argparse
import io
import json
import os
import sys
import threading
from urllib.parse import parse_qs

os.environ.setdefault("MOTO_IAM_LOAD_MANAGED_POLICIES", "true")

from moto.server import DomainDispatcherApplication, create_backend_app  # noqa: E402
from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: E402
from werkzeug.wrappers import Request, Response  # noqa: E402

import caches  # noqa: E402
import distributions  # noqa: E402
import lifecycle  # noqa: E402
import machines  # noqa: E402
import networks  # noqa: E402
import objects  # noqa: E402
import permissions  # noqa: E402
import refusals  # noqa: E402


class Handler(WSGIRequestHandler):
    """Keeps connections, as the services do, and is quiet: tests tell what they did."""

    protocol_version = "HTTP/1.1"

    def log(self, type, message, *args):
        if type == "error":
            super().log(type, message, *args)


class Emulator:
    """Answers the tests' own routes, refuses what is to be refused, and passes the rest on to moto."""

    def __init__(self):
        self.services = DomainDispatcherApplication(create_backend_app)
        self.refusals = refusals.Refusals()
        self.permissions = permissions.Permissions()

    def __call__(self, environ, start_response):
        request = Request(environ)
        if request.path.startswith("/emulator/"):
            return self.control(request)(environ, start_response)
        # moto reads the body itself: leave it as it was.
        body = request.get_data(cache=True, parse_form_data=False)
        environ["wsgi.input"] = io.BytesIO(body)
        action = parse_qs(body.decode("utf-8", "replace")).get("Action", [""])[0]
        refused = self.refusals.take(action)
        if refused is not None:
            return refused(environ, start_response)
        refused, role = self.permissions.check(request, body)
        if refused is not None:
            return refused(environ, start_response)
        answer = Response.from_app(self.services, environ) if role else self.services
        if role and answer.status_code == 404 and self.permissions.hides_absence(role, request):
            answer = permissions.refusal("s3", "AccessDenied", "Access Denied")
        return answer(environ, start_response)

    def control(self, request):
        if request.path == "/emulator/refuse":
            self.refusals.add(request.args["action"], request.args["code"], int(request.args.get("times", "1")))
        elif request.path == "/emulator/capacity":
            machines.CAPACITY.give(**request.args)
        elif request.path == "/emulator/advance":
            machines.CLOCK.advance(float(request.args["seconds"]))
        elif request.path == "/emulator/credentials":
            return Response(json.dumps(self.permissions.credentials(**request.args)), content_type="application/json")
        elif request.path == "/emulator/grants":
            return Response(json.dumps(sorted(self.permissions.used)), content_type="application/json")
        else:
            return Response("no such route\n", 404)
        return Response("", 204)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settle", type=float, default=0.1, help="seconds that a machine is pending or stopping")
    parser.add_argument("--virtual", action="store_true", help="these seconds pass when the test says so")
    parser.add_argument("--serverless", default="127.0.0.1:6379", help="host:port that every serverless cache is found at")
    args = parser.parse_args()
    machines.CLOCK.virtual = args.virtual
    machines.install(args.settle)
    networks.install()
    objects.install()
    distributions.install()
    lifecycle.install()
    host, _, port = args.serverless.rpartition(":")
    permissions.install()
    caches.install({"Address": host, "Port": int(port)})
    server = make_server("127.0.0.1", 0, Emulator(), threaded=True, request_handler=Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
