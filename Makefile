# Works on a fresh clone with Python 3.11 or newer, make and pip. `make PYTHON=python3.12 ...` chooses the interpreter.
PYTHON ?= python3
RUN := .venv/bin/python

# Images of containers often set it. Each of the thousands of processes of the tests would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test quick check bench fix soak docs venv system

help:
	@echo "make demo    train a small model while faults are injected, and draw the curve (about a minute after set-up)"
	@echo "make test    set up and run all that CI runs; as root also the tests that freeze disks"
	@echo "make quick   the same without slow and root tests"
	@echo "make check   the same as test, less the Debian packages"
	@echo "make bench   the quick form of every bench, with its bars; wants a quiet machine"
	@echo "make fix     format, and mend what the linter can"
	@echo "make soak    tests, benches and crashes at full length (hours); writes docs/soak.md"
	@echo "make docs    build the documentation as a site, build/docs/index.html"
	@echo "make venv    only make .venv"

demo:
	$(PYTHON) tools/environment.py demo
	.venv/bin/logclient demo

venv:
	$(PYTHON) tools/environment.py dev

system:
	$(PYTHON) tools/environment.py system

test:
	$(MAKE) -j2 system venv
	$(RUN) tools/check.py

check: venv
	$(RUN) tools/check.py

quick: venv
	$(RUN) tools/check.py --quick

bench: venv
	$(RUN) tools/check.py --only benches

fix: venv
	$(RUN) tools/check.py --fix

soak: system venv
	$(RUN) tools/soak.py

docs:
	$(PYTHON) tools/docs.py
