#!/bin/sh
set -eu
python - <<'EOF'
from pathlib import Path

path = Path("sqlparse/cli.py")
text = path.read_text()
flag = '''    parser.add_argument(
        '--check',
        action='store_true',
        help='write nothing; exit with 1 if FILE would be changed')

    parser.add_argument(
        '--version','''
text = text.replace("    parser.add_argument(\n        '--version',", flag)
opening = "    close_stream = False\n    if args.outfile:"
text = text.replace(opening, "    close_stream = False\n    if args.outfile and not args.check:")
formatted = "    s = sqlparse.format(data, **formatter_opts)\n"
path.write_text(text.replace(formatted, formatted + "    if args.check:\n        return int(s != data)\n"))
EOF
