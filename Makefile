# Weft: RDMA programs on a machine with no RDMA hardware. `make help` lists the targets.

CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=

root := $(DESTDIR)$(PREFIX)
bash_completions := $(root)/share/bash-completion/completions
zsh_completions := $(root)/share/zsh/site-functions
fish_completions := $(root)/share/fish/vendor_completions.d
units := $(root)/lib/systemd/system

# Debian packages that `make demo` and `make bench` measure with.
measured := build-essential iproute2 util-linux libibverbs-dev librdmacm-dev \
	perftest rdmacm-utils qperf iperf3 ucx-utils libfabric-bin redis-server redis-tools \
	openssh-server openssh-client tgt libiscsi-bin qemu-utils qemu-block-extra
# Those that `make bench` needs besides.
benched := sockperf wrk nginx-light memcached libmemcached-tools apache2 apache2-utils haproxy \
	mariadb-server mariadb-client sysbench mosquitto mosquitto-clients python3-venv \
	bind9 bind9-dnsutils gearman-job-server gearman-tools \
	openjdk-17-jdk-headless rsync nbdkit

.PHONY: help build check demo test soak differ bench deb install clean

help: ## Show this text
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

build: ## Build the command and the libraries into dist/
	$(CARGO) xtask dist

demo: ## Run RDMA programs between two network namespaces, redis on one host, copies and disks, beside others
	scripts/setup $(measured)
	$(MAKE) build
	$(CARGO) run --quiet --package weft-lab --bin demo

check: ## Format, lints, house rules, unit tests and simulations: before each commit
	scripts/check

test: ## For each change that lands: every promise, and every real program over its main path (scripts/test --codes)
	scripts/test

soak: ## Run what is long, random or foreign, for SOAK_MINUTES (60), and all of it if they suffice (SOAK="fuzz stall": only these)
	scripts/soak $(SOAK)

differ: ## Compare random programs on the kernel and on Weft, for an hour (DIFFER="--seconds 600")
	scripts/setup build-essential
	$(MAKE) build
	$(CARGO) run --quiet --release --package weft-lab --bin differ -- $(DIFFER)

bench: ## Measure beside TCP (BENCH="--json", "--one-host" or "--sockets" for shared memory, "--transfer" for copies, "--target" for block storage, "--pipeline" for streams, "--tuples" for the tuple space, "--fabric" for weft-fabric beside the engine, "--fair" for a narrow path)
	scripts/setup $(measured) $(benched)
	scripts/fetch timely-stream python-sockets
	$(MAKE) build
	$(CARGO) run --quiet --package weft-lab --bin bench -- $(BENCH)

deb: ## Build Debian packages in dist/deb/
	$(MAKE) build
	$(CARGO) xtask deb

install: ## Install dist/ under PREFIX (default /usr/local), staged in DESTDIR
	@test -x dist/bin/weft || { echo "run 'make build' first" >&2; exit 1; }
	install -d $(root)/bin $(root)/include $(root)/lib/weft $(root)/share/man/man1
	install -d $(bash_completions) $(zsh_completions) $(fish_completions) $(units)
	install dist/bin/weft $(root)/bin/
	install -m 644 dist/include/weft_socket.h dist/include/weft_tuples.h $(root)/include/
	install -m 644 dist/lib/libweft_tuples.so.1 $(root)/lib/
	ln -sf libweft_tuples.so.1 $(root)/lib/libweft_tuples.so
	install -d $(root)/lib/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|g' crates/weft-tuples-c/weft-tuples.pc.in >$(root)/lib/pkgconfig/weft-tuples.pc
	cp --no-dereference --remove-destination dist/lib/weft/* $(root)/lib/weft/
	sed 's|@BINDIR@|$(PREFIX)/bin|g' scripts/systemd/weft-target.service.in >$(units)/weft-target.service
	sed 's|@BINDIR@|$(PREFIX)/bin|g' scripts/systemd/weft-serve.service.in >$(units)/weft-serve.service
	chmod 644 $(units)/weft-target.service $(units)/weft-serve.service
	dist/bin/weft man $(root)/share/man/man1
	dist/bin/weft completions bash >$(bash_completions)/weft
	dist/bin/weft completions zsh >$(zsh_completions)/_weft
	dist/bin/weft completions fish >$(fish_completions)/weft.fish

clean: ## Remove everything that was built
	$(CARGO) clean
	rm -rf dist
