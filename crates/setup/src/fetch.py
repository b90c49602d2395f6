"""Downloads one file, and goes on where an earlier download of it stopped; prints the file's own name.

    python3 -c SCRIPT REQUIREMENT|URL FILE BYTES [options of `pip download`]

pip's own finder and session do the work, so that its indexes, certificates, proxies and passwords hold. They are the
same from pip 22.0 to 26.3, but no public interface; with another pip this ends in an exception. (`pip install --dry-run
--report`, which is public, downloads a whole wheel to say its address, unless the index has its metadata.)
"""

import logging
import os
import sys
import time

from pip._internal.cli.cmdoptions import make_target_python
from pip._internal.commands.download import DownloadCommand
from pip._internal.exceptions import PipError
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.requests.exceptions import RequestException

# Exit codes, as in download.rs. After any other, `pip download` is tried.
LOST, UNKNOWN, REFUSED = 3, 4, 5
TRIES = 4  # connections in a row that may bring nothing new


def end(code, reason):
    print("error:", reason, file=sys.stderr)
    sys.exit(code)


def found(asked, command, options, session):
    if "://" in asked:
        return asked, asked.rsplit("/", 1)[-1]
    finder = command._build_package_finder(options, session, make_target_python(options))
    best = finder.find_best_candidate(Requirement(asked).name, Requirement(asked).specifier).best_candidate
    if best is None:
        end(UNKNOWN, "no matching distribution found for " + asked)
    return best.link.url_without_fragment, best.link.filename


def go_on(session, url, file, have):
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    with session.get(url, headers=headers, stream=True) as response:
        if have and response.status_code == 416:
            return True  # there is no more
        if 400 <= response.status_code < 500:
            end(REFUSED, f"{response.status_code} {response.reason}")
        response.raise_for_status()
        with open(file, "ab" if response.status_code == 206 else "wb") as out:
            for part in response.iter_content(1 << 16):
                out.write(part)


def main(asked, file, size, *words):
    logging.basicConfig()  # says which server does not answer: the finder just finds nothing there
    command = DownloadCommand("download", "")
    options, _ = command.parse_args(list(words))
    session = command._build_session(options)
    url, name = found(asked, command, options, session)
    open(file, "ab").close()
    most, tries, have = os.path.getsize(file), 0, os.path.getsize(file)
    while have < int(size):
        reason = "the connection was lost"
        try:
            if go_on(session, url, file, have):
                break
        except (RequestException, PipError) as error:
            reason = str(error).rsplit(": ", 1)[-1].rstrip("')")
        except OSError as error:
            end(LOST, f"{file}: {error.strerror}")
        have = os.path.getsize(file)
        most, tries = (have, 0) if have > most else (most, tries + 1)
        if tries == TRIES:
            end(LOST, reason)
        time.sleep(tries / 2)
    print(name)


main(*sys.argv[1:])
