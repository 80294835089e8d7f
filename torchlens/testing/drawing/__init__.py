"""What could have happened, as hypothesis draws it; none of it needs torch but tensors."""
