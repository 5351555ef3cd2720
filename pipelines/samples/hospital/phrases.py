"""What is written in the hospital: every sentence is the project's own, and none is taken from a patient's note."""

from typing import NamedTuple


class Problem(NamedTuple):
    """Why a patient comes: in words, as ICD-9 and ICD-10 codes, and what examination and treatment say of it."""

    name: str
    complaint: str
    icd9: str
    icd10: str
    finding: str
    treatment: str


PROBLEMS = (
    Problem(
        "pneumonia",
        "Cough and fever",
        "486",
        "J189",
        "Coarse breath sounds at the right base.",
        "Pneumonia was treated with ceftriaxone and azithromycin.",
    ),
    Problem(
        "heart failure",
        "Shortness of breath",
        "4280",
        "I509",
        "Neck veins were raised and the ankles pitted.",
        "Heart failure was treated with intravenous furosemide.",
    ),
    Problem(
        "sepsis",
        "Fever and low blood pressure",
        "0389",
        "A419",
        "Skin was warm and the pulse bounding.",
        "Sepsis was treated with fluids, vancomycin and cefepime.",
    ),
    Problem(
        "gastrointestinal bleeding",
        "Black stools",
        "5789",
        "K922",
        "Abdomen was soft, with dark stool on examination.",
        "Bleeding stopped after endoscopy and pantoprazole.",
    ),
    Problem(
        "atrial fibrillation",
        "Palpitations",
        "42731",
        "I4891",
        "Pulse was fast and irregular.",
        "Atrial fibrillation was slowed with metoprolol.",
    ),
    Problem(
        "acute kidney injury",
        "Little urine",
        "5849",
        "N179",
        "Mucous membranes were dry.",
        "Acute kidney injury improved with fluids.",
    ),
    Problem(
        "cholera",
        "Watery diarrhoea",
        "0019",
        "A009",
        "Eyes were sunken and skin turgor poor.",
        "Cholera was treated with fluids and doxycycline.",
    ),
    Problem(
        "hip fracture",
        "Fall with hip pain",
        "82021",
        "S72141A",
        "Left leg was shortened and turned outwards.",
        "Hip fracture was fixed in the operating room.",
    ),
)
"""Codes are text: some begin with zeros that a number would lose."""


class Diagnosis(NamedTuple):
    """What a patient has besides: in words, and as ICD-9 and ICD-10 codes."""

    name: str
    icd9: str
    icd10: str


OTHER_DIAGNOSES = (
    Diagnosis("hypertension", "4019", "I10"),
    Diagnosis("type 2 diabetes", "25000", "E119"),
    Diagnosis("high cholesterol", "2724", "E785"),
    Diagnosis("anemia", "2859", "D649"),
    Diagnosis("lasting use of warfarin", "V5861", "Z7901"),
    Diagnosis("trouble after an earlier operation", "E8788", "Y838"),
    Diagnosis("clostridium difficile colitis", "00845", "A047"),
    Diagnosis("coliform infection", "0414", "B9620"),
    Diagnosis("reflux disease", "53081", "K219"),
    Diagnosis("depression", "311", "F329"),
)

CONDITIONS = (
    ("missed doses of medication", "poor adherence to tablets"),
    ("repeated falls", "falls on the stairs"),
    ("heavy alcohol use", "daily drinking of spirits"),
    ("severe memory loss", "advanced dementia"),
)
"""What raises the risk of return, in the order of the weights in `risk`, each said in two ways."""

HARMLESS = (
    "seasonal hay fever",
    "mild back pain",
    "dry skin",
    "occasional headaches",
    "heartburn after meals",
    "old hearing loss",
    "varicose veins",
    "knee stiffness",
    "ringing in the ears",
    "lactose intolerance",
    "a quiet heart murmur",
    "poor night vision",
)
"""What is said in the same words and changes nothing."""

ASSERTED = (
    "Patient reports {}.",
    "Patient is known for {}.",
    "Positive for {}.",
    "History of {}, still ongoing.",
    "Team noted {}.",
)
NEGATED = (
    "Patient denies {}.",
    "No evidence of {}.",
    "Negative for {}.",
    "No history of {}.",
    "Team ruled out {}.",
)
OF_RELATIVES = (
    "Mother had {}.",
    "Father is known for {}.",
    "Brother reports {}.",
    "Sister with a history of {}.",
)
MIXED = "Patient reports {} but denies {}."
WARNING = "Please call the clinic in case of {}."

PRESENTING = (
    "Symptoms began {few} days before admission and grew worse at night.",
    "The patient was seen in clinic by Dr. {name} and sent to the emergency department.",
    "In the emergency department vitals were stable after one litre of fluid.",
    "There had been no recent travel and no sick contacts at home.",
    "On the morning of {date} the patient called for an ambulance.",
    "Appetite had been fair and sleep somewhat disturbed.",
    "The patient was brought to {hospital} and then moved to this ward.",
    "A chest film and blood cultures were taken on arrival.",
)
COURSE = (
    "Anemia: hematocrit stayed near {percent}, no transfusion was needed.",
    "Diabetes: sugars between {hundred} and {hundreds} on a sliding scale.",
    "Hypertension: home tablets were held on day one and then resumed.",
    "Nutrition: regular diet, taken well.",
    "Access: one peripheral line, removed on {date}.",
    "Prophylaxis: heparin under the skin and early walking.",
    "Dr. {name} of the consulting service agreed with the plan.",
    "Creatinine was {ratio} on {date} and had settled by discharge.",
    "Physical therapy saw the patient on day {few} and cleared stairs.",
    "Pain was well controlled with acetaminophen.",
    "Antibiotics were narrowed after cultures of {date} stayed negative.",
    "Code status was discussed and the patient remained full code.",
)
EXAMINED = (
    "General: awake, in no distress.",
    "Lungs: good air entry on both sides.",
    "Heart: regular, no rub.",
    "Abdomen: soft, not tender, bowel sounds present.",
    "Neuro: moves all four limbs, speech clear.",
    "Extremities: warm, pulses felt.",
)
LABS = (
    "{date} 05:{minute} BLOOD WBC-{ratio} Hgb-{percent} Plt-{hundreds}",
    "{date} 06:{minute} BLOOD Glucose-{hundred} UreaN-{minute} Creat-{ratio} Na-138 K-4.1",
    "{date} 07:{minute} BLOOD Calcium-8.9 Phos-3.{few} Mg-2.0",
    "{date} CHEST FILM: heart size normal, no focal shadow.",
)
MEDICATIONS = (
    "Lisinopril 10 mg Tablet Sig: One (1) Tablet PO DAILY.",
    "Metoprolol Tartrate 25 mg Tablet Sig: 0.5 Tablet PO BID.",
    "Furosemide 40 mg Tablet Sig: One (1) Tablet PO DAILY.",
    "Aspirin 81 mg Tablet Sig: One (1) Tablet PO DAILY.",
    "Atorvastatin 20 mg Tablet Sig: One (1) Tablet PO at bedtime.",
    "Pantoprazole 40 mg Tablet Sig: One (1) Tablet PO q24h.",
    "Docusate 100 mg Capsule Sig: One (1) Capsule PO BID as needed.",
    "Warfarin 2.5 mg Tablet Sig: One (1) Tablet PO every other day.",
)
PAST = (
    "Hypertension",
    "Type 2 diabetes, last A1c 6.{few}%",
    "High cholesterol",
    "Osteoarthritis of both hands",
    "Gout, last attack in {date}",
    "Appendectomy in childhood",
    "Hypothyroidism",
    "Cataract, left eye",
)
SOCIAL = (
    "Lives in a flat with an elevator.",
    "Retired, used to work in a bakery.",
    "Enjoys gardening and walks the dog.",
    "Speaks English, reads without glasses.",
)
INSTRUCTIONS = (
    "It was a pleasure to care for you.",
    "Please take all tablets as listed above.",
    "Weigh yourself every morning and write it down.",
    "Please see Dr. {name} on {date} at 10:{minute}.",
    "Call {phone} with any questions.",
)
SEVERITY = (
    "Patient looked well on arrival.",
    "Patient looked tired and needed oxygen by nasal cannula.",
    "Patient was cold and drowsy and needed norepinephrine.",
)
"""How ill a patient came, from 0 to 2."""

NURSING = (
    "Lungs clear in the upper fields, thin secretions.",
    "Voiding well, urine yellow and clear.",
    "Turned every two hours, skin intact.",
    "Family visited and was updated by the team.",
    "Tolerated sips and then a light meal.",
    "Slept in short naps, call light within reach.",
    "Plan: monitor vitals, continue present care.",
)
RADIOLOGY = (
    "Comparison is made with the film of {date}.",
    "The heart is of normal size.",
    "There is no effusion and no pneumothorax.",
    "Bones are intact for age.",
    "Lines and tubes are in good position.",
    "Lung volumes are slightly low.",
)
ECG = ("Sinus rhythm at {hundred} beats.", "Normal axis and intervals.", "No change since the tracing of {date}.")
OTHER = (
    "Patient seen on rounds, plan of care reviewed.",
    "Equipment checked, alarms set.",
    "Will follow with the team.",
    "Insurance and address were confirmed.",
)
NEWBORN = (
    "Baby was born at term and cried at once.",
    "Feeding well from the breast, weight {minute} g above yesterday.",
    "Temperature stable in an open crib.",
    "Hearing test passed on both sides.",
    "Parents were shown bathing and cord care.",
)
OUTCOMES = {
    True: "30-day review: there was an unplanned readmission.",
    False: "30-day review: there was no unplanned readmission.",
}
"""What late notes say, by whether the patient returned; no other note has a 30-day review."""
