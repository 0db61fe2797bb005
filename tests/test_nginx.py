"""A limiter that nobody here wrote: nginx's limit_req before the simulated upstream, over real sockets."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import ids, results, run, upstream, write_prompts
from judges import free_port, serving

CONFIG = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  limit_req_zone $binary_remote_addr zone=all:1m rate=10r/s;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      limit_req zone=all burst=5 nodelay;
      limit_req_status 429;
      proxy_pass {upstream};
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


@contextmanager
def nginx(folder: Path, behind: str) -> Iterator[str]:
    """nginx on a free port, 10 requests per second with a burst of 5, no Retry-After; gives its base URL."""
    program, port = shutil.which("nginx") or "/usr/sbin/nginx", free_port()
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, port=port, upstream=behind.removesuffix("/v1")))
    with serving([program, "-p", folder, "-c", config], port, folder / "nginx.log"):
        yield f"http://127.0.0.1:{port}/v1"


@pytest.mark.slow
@pytest.mark.alone
def test_three_hundred_prompts_pass_nginx_with_hardly_a_refusal(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 300), tmp_path / "r.jsonl"
    with upstream("steady?rate=1000&burst=1000&latency=0.3&words=3") as behind, nginx(tmp_path, behind) as url:
        began = time.monotonic()
        done = run(prompts, "--base-url", url, "--model", "m", "-o", out)
        assert time.monotonic() - began > 29, "nginx lets 10 a second through, and 5 at once"
    assert done.returncode == 0, done.stderr
    assert ids(results(out)) == sorted(range(300), key=str)
    refused = sum(int(str(line["throttled"])) for line in results(out))
    attempts = sum(int(str(line["attempts"])) for line in results(out))
    assert refused < 0.02 * attempts
