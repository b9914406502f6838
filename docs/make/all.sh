#!/usr/bin/env bash
# Makes what this repository generates, of one run of the default command:
#
#     bash docs/make/all.sh                                           # 20 minutes on two cores
#     bash docs/make/all.sh /tmp/trial --steps 2 --eval_problems 8    # a trial, in another folder
#
#     docs/report_default_run.html                    the run's report
#     docs/hero*, docs/lines*                         the README's pictures: light, dark, for phones
#     docs/lesson.html                                nano_r1.py with the values of one of its steps
#     notebooks/*.ipynb, notebooks/chapters/*.ipynb   run from top to bottom (not in a trial)
#
# Each page ends with the commit that made it. A finished run of the same code is used again, and a
# stopped one continues. No test compares the committed pages with the code: make them for a release.
set -euo pipefail
cd "$(dirname "$0")/../.."
COMMIT=$(git describe --always 2> /dev/null || echo unknown)
git diff --quiet HEAD -- '*.py' '*.js' '*.css' '*/page/*.html' 2> /dev/null || COMMIT="a change of $COMMIT"
export COMMIT
code=$(cat nano_r1.py countdown_rewards.py nano_report/*.py docs/make/lesson/*.py models/nano-base/*.* |
  cksum | cut -d " " -f 1)
pages=${1:-docs}
run=${1:-out}/default-command-$code
flags=("${@:2}")
mkdir -p "$run"
run=$(cd "$run" && pwd)

if [ ! -e "$run/report.html" ]; then # the last file that a run writes
  start=--name
  [ ! -e "$run/config.json" ] || start=--resume
  python nano_r1.py --task countdown $start "$run" ${flags[@]+"${flags[@]}"}
fi
[ -e "$run/lesson.json" ] || python -m docs.make.lesson.record "$run"
python -m docs.make.lesson.make "$run" "$run/lesson.html"
python -m docs.make.hero "$run" "$pages"
python -m nano_report "$run" > /dev/null # its pages may have changed since the run
made="<p>Made by <code>docs\/make\/all.sh<\/code> at commit $COMMIT.<\/p>"
sed "s/<\/footer>/$made&/" "$run/lesson.html" > "$pages/lesson.html"
sed "s/<\/footer>/$made&/" "$run/report.html" > "$pages/report_default_run.html"
[ $# -gt 0 ] || python notebooks/make.py
