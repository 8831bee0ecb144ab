"""Images, histograms, tables and files that a run logs: from the ring of raw values to blobs and references.

=====================  =================================================================================
`media_keeper.py`      in the supervisor: keeps the media process running where a run has media values
`media_process.py`     the process: takes values one by one, stores the blob, then commits its reference
`media_files.py`       the media files of the shm directory that it works on
`encoded.py`           one value as it was logged -> the bytes of its blob and the fields of its reference
`pixels.py`            raw pixels -> PNG;  raw numbers -> the counts of a histogram
`film.py`              frames -> a film
`blobs.py`             blobs in the run folder: stored once by their hash, the oldest removed
=====================  =================================================================================
"""
