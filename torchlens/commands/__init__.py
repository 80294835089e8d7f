"""The commands of ``torchlens journal``, by what they are for; ``torchlens.cli`` lists them."""
