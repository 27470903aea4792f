"""The stages of tightfit, one package each; importing this loads none of them."""
