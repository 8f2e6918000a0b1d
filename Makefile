# Every target works in a fresh clone: .venv is made when it is missing (PYTHON=... names the interpreter).
.DEFAULT_GOAL := help
.PHONY: help demo test ci check mutations unit clean

help:  ## say what can be made
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo:  ## serve, send requests, also through the real smg, show what came back, was captured, was mirrored (GATEWAY=0: without smg)
	@tools/venv.sh
	@.venv/bin/python examples/demo.py $(if $(GATEWAY),$(if $(filter 0,$(GATEWAY)),--no-gateway,--gateway))

test:  ## all checks of a change: format, lint, types, generated code, docstrings, tests, coverage
	@tools/venv.sh dev
	@.venv/bin/python tools/check.py

check:  ## the same without the tests: a matter of seconds
	@tools/venv.sh dev
	@.venv/bin/python tools/check.py format lint types proto docstrings

unit:  ## only the tests; ARGS="-k capture" picks some
	@tools/venv.sh dev
	@.venv/bin/python -m pytest $(ARGS)

mutations:  ## change one line at a time and see that the named test notices
	@tools/venv.sh dev
	@.venv/bin/python tools/mutations.py

ci:  ## what a submission must pass
	@.ci/run

clean:  ## remove what the other targets made
	rm -rf .venv dist build htmlcov .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis .demo
