#!/usr/bin/env bash
# Builds the site of the docs into target/book, with mdBook. `make docs` calls it.
#
# The first run builds mdBook, in two minutes on two cores. If there is a chromium, a picture of the first page goes to target/book.png.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

# Without the parts that serve and watch.
mdbook=$(release/tool.sh mdbook --quiet --locked --debug --no-default-features --features search mdbook@0.5.4)
"$mdbook" build

# Each link of the site leads to a file of the site.
broken=0
while IFS=: read -r page link; do
    case $link in *://* | mailto:* | '#'* | '' | javascript:*) continue ;; esac
    path=${link%%[#?]*}
    case $path in /*) file=target/book$path ;; *) file=$(dirname "$page")/$path ;; esac
    [ -e "$file" ] || { echo "docs: $page: $link leads nowhere" >&2; broken=1; }
done < <(grep -ro --include='*.html' -E '(href|src)="[^"]*"' target/book | sed -E 's/:(href|src)="([^"]*)"$/:\2/' | sort -u)
((broken == 0))

if command -v chromium > /dev/null; then
    # As root, chromium has no sandbox of its own. It looks at a file, and at nothing else.
    chromium --headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run --hide-scrollbars --window-size=1280,1600 \
        --user-data-dir="$(mktemp -d)" --screenshot="$PWD/target/book.png" "file://$PWD/target/book/index.html" > target/book.log 2>&1
    [ -s target/book.png ] || { tail -n 5 target/book.log >&2; exit 1; }
    echo "docs: target/book.png shows the first page" >&2
fi
echo "docs: $(find target/book -name '*.html' | wc -l) pages in target/book" >&2
