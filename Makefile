# Everything sets itself up: a fresh machine needs Python 3.11+, a C++20 compiler and make.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test check bench clean
install: .venv/installed
