"""A SuperNode that runs only apps whose hashes are pinned: ``python -m fedspam_client.pinned --app SHA256 ...``"""

from ._shared.flower.privacy.pinned import main

if __name__ == "__main__":
    main()
