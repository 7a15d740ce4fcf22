from aero.report.cost_pages import to_html as to_html
from aero.report.runs import read_run as read_run
from aero.report.text_and_csv import to_csv as to_csv
from aero.report.text_and_csv import to_text as to_text
from aero.report.writing import write_report as write_report
