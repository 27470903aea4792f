"""What generated packages have as `form.py`: `stages.device.form`, under the same name."""

from tightfit.stages.device.form import check_form

__all__ = ["check_form"]
