"""OffMate: blocks with options of which some of what they keep leaves over a link (Z 4)."""
