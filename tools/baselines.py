"""What a configuration's result has to beat: raw pixels and the untrained network, measured on its test split.

python tools/baselines.py omniglot/soprc [key=value …]
"""

import sys

from aurank.commands.demo import baselines
from aurank.training import read_config


def main() -> None:
    for name, report in baselines(read_config(sys.argv[1], sys.argv[2:])).items():
        print(f"{name:<12} mAUPRC {report.mauprc:.4f}  Recall@1 {report.recall[1]:.4f}")


if __name__ == "__main__":
    main()
