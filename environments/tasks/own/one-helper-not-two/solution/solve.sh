#!/bin/sh
set -eu
python - <<'EOF'
import re
from pathlib import Path

path = Path("sqlparse/sql.py")
text = re.sub(r"\n\ndef _without_quotes\(.*?\n\n\n", "\n\n", path.read_text(), flags=re.DOTALL)
path.write_text(text.replace("_without_quotes(", "remove_quotes(").replace("import imt", "import imt, remove_quotes"))
EOF
