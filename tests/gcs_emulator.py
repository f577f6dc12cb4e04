"""An emulator of Google Cloud Storage on a free port of 127.0.0.1, which it prints.

It adds to gcp-storage-emulator the preconditions on generations, which a lock needs,
the header from which TensorStore learns a generation, and faults: a POST to `/faults`
with `{"share": 0.3, "status": 503}` lets that share of the requests fail.
"""

import functools
import json
import random
import threading
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from typing import Any

from gcp_storage_emulator import server
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import buckets, objects
from gcp_storage_emulator.storage import Storage

BUCKET = 'bucket'


class Memory(Storage):
  """Objects in memory; what is deleted is gone, and nothing is written to disk."""

  def _write_config_to_file(self):
    pass

  def _bucket_soft_delete_retention_seconds(self, bucket_name):
    return 0


class Handler(server.RequestHandler):
  """Answers one request at a time, unless it is to fail."""

  faults = {'share': 0.0, 'status': 503}
  one_at_a_time = threading.Lock()

  def _answer(self, method):
    with self.one_at_a_time:
      if self.path == '/faults':
        size = int(self.headers['Content-Length'])
        self.faults.update(json.loads(self.rfile.read(size)))
        return self._refuse(HTTPStatus.OK)
      if '/moveTo/' in self.path:  # it would answer 501, after which gcsfs tries again
        return self._refuse(HTTPStatus.METHOD_NOT_ALLOWED)
      if random.random() < self.faults['share']:
        return self._refuse(HTTPStatus(self.faults['status']))
      return server.Router(self).handle(method)

  def _refuse(self, status):
    # What was sent is read, or the client would see a broken connection.
    if self.path != '/faults':
      self.rfile.read(int(self.headers['Content-Length'] or 0))
    self.send_response(status)
    self.send_header('Content-Length', '0')
    self.end_headers()

  def do_GET(self):
    self._answer('GET')

  def do_POST(self):
    self._answer('POST')

  def do_DELETE(self):
    self._answer('DELETE')

  def do_PUT(self):
    self._answer('PUT')

  def do_PATCH(self):
    self._answer('PATCH')


def read_raw_data(handler, read=server._read_raw_data):
  """The body of a request, as `email` can take it apart.

  gcsfs puts a line feed and the boundary after a file. If the last byte of the file is
  a carriage return, `email` drops both as one end of line.
  """
  data, end = read(handler), b'\n--==0==--'
  if data and data.endswith(end):
    return data.removesuffix(end) + b'\r' + end
  return data


def guarded(function, read):
  """The handler of an operation with `ifGenerationMatch` and `…NotMatch`."""

  def handler(request, response, storage, *arguments, **named):
    name = request.params.get('object_id') or (request.query.get('name') or [None])[0]
    if name is None and isinstance(request.data, dict):
      name = (request.data.get('meta') or request.data).get('name')
    now = generation(storage, request.params.get('bucket_name'), name)
    match = (request.query.get('ifGenerationMatch') or [now])[0]
    other = (request.query.get('ifGenerationNotMatch') or [None])[0]
    if match != now:
      response.status = HTTPStatus.PRECONDITION_FAILED
      response.json({'error': {'code': 412, 'message': f'{now} is not {match}'}})
      return None
    if other == now:
      response.status = HTTPStatus.NOT_MODIFIED if read else 412
      return None
    if read and now != '0':
      response['X-Goog-Generation'] = now
    return function(request, response, storage, *arguments, **named)

  return handler


def generation(storage, bucket, name):
  try:
    return str(storage.get_file_obj(bucket, name)['generation'])
  except NotFound:
    return '0'


def serve() -> None:
  replaced: dict[Any, Any] = {
    old: guarded(old, read)
    for old, read in (
      (objects.insert, False),
      (objects.delete, False),
      (objects.get, True),
      (objects.download, True),
    )
  }
  server.HANDLERS = tuple(
    (route, {method: replaced.get(old, old) for method, old in handlers.items()})
    for route, handlers in server.HANDLERS
  )
  server._read_raw_data = read_raw_data
  storage = Memory(use_memory_fs=True)
  buckets.create_bucket(BUCKET, storage)
  handler = functools.partial(Handler, storage)
  listening = ThreadingHTTPServer(('127.0.0.1', 0), handler)
  print(listening.server_port, flush=True)
  listening.serve_forever()


if __name__ == '__main__':
  serve()
