#!/bin/sh
# newer_pythons.sh: print the directory of python3.14 and python3.15 where this Debian has none, or nothing.
#
# They are those of Debian's sid, unpacked beside the system and run by their own loader with their own C library: that
# needs neither root nor chroot, and changes nothing. 24 MB to download, 90 MB in ~/.cache, anew each month.
# Where apt is not, it says so on standard error; the version jobs of tox are skipped then.
set -eu
versions="3.14 3.15"

missing=
for version in $versions; do
    command -v "python$version" >/dev/null 2>&1 || missing=1
done
[ -n "$missing" ] || exit 0

keys=/usr/share/keyrings/debian-archive-keyring.gpg
for needed in apt-get dpkg-deb "$keys"; do
    if ! command -v "$needed" >/dev/null 2>&1 && ! [ -r "$needed" ]; then
        echo "no Python $versions: it comes from Debian's sid, and this machine has no $needed" >&2
        exit 0
    fi
done

# The mirror of Debian that this machine uses.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/$') || {
    echo "no Python $versions: it comes from Debian's sid, and this machine knows no mirror of Debian" >&2
    exit 0
}

cache=${XDG_CACHE_HOME:-$HOME/.cache}/statestore-client-tests
tree=$cache/sid-$(date +%Y-%m)
if ! [ -d "$tree" ]; then
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/sid.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/tree"
    : >"$work/status"
    echo "deb [signed-by=$keys] $mirror sid main" >"$work/sources.list"
    # An apt that knows of this list alone, and of nothing that is installed: so it gets all that they need.
    apt() {
        apt-get -qq -o Dir::State="$work" -o Dir::State::status="$work/status" -o Dir::Cache="$work" \
            -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null -o APT::Sandbox::User= \
            -o Acquire::Languages=none -o Acquire::Retries=3 "$@" >&2
    }
    packages=libstdc++6 # of which wheels expect that it is there
    for version in $versions; do
        packages="$packages python$version python$version-venv"
    done
    apt update
    # shellcheck disable=SC2086
    apt --download-only --no-install-recommends -y install $packages
    for package in "$work"/archives/*.deb; do
        dpkg-deb -x "$package" "$work/tree"
    done
    # Not by way of the libraries of this machine, which are older. The name they were called by is what Python looks for
    # its virtual environment with.
    loader=$(cd "$work/tree" && find usr/lib -name 'ld-linux*.so.*' | head -1)
    for version in $versions; do
        python=$work/tree/usr/bin/python$version
        mv "$python" "$python.elf"
        cat >"$python" <<END
#!/bin/sh
exec "$tree/$loader" --inhibit-cache --library-path "$tree/${loader%/*}" --argv0 "\$0" "$tree/usr/bin/python$version.elf" "\$@"
END
        chmod +x "$python"
    done
    mv -T "$work/tree" "$tree" 2>/dev/null || [ -d "$tree" ] # another run was faster
fi
"$tree/usr/bin/python3.15" -c pass
echo "$tree/usr/bin"
