# Installs this release of Leafhost: `make install`, as root, PREFIX=/usr/local. It needs no network and no compiler.
PREFIX  ?= /usr/local
DESTDIR ?=

.PHONY: install
install:
	sha256sum --quiet -c SHA256SUMS
	rm -rf $(DESTDIR)$(PREFIX)/share/leafhost/sdk
	install -d $(DESTDIR)$(PREFIX)
	cp -R --no-preserve=ownership bin lib libexec share $(DESTDIR)$(PREFIX)/
	sed -i 's|@PREFIX@|$(PREFIX)|' $(DESTDIR)$(PREFIX)/lib/systemd/system/leafhost.service
