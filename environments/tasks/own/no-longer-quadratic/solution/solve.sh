#!/bin/sh
set -eu
python - <<'EOF'
from pathlib import Path

path = Path("sqlparse/utils.py")
text = path.read_text()
start = text.index("    names = []\n", text.index("def distinct_names"))
end = text.index("    return names\n", start) + len("    return names\n")
better = "    return list(dict.fromkeys(t.value for t in tokens if t.ttype in T.Name))\n"
path.write_text(text[:start] + better + text[end:])
EOF
